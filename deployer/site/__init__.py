"""The far side: a cluster without internet, root or Docker. One verb a file, Python 3.6, standard library."""
