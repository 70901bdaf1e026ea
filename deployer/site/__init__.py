"""What only the site does: a cluster without internet, root or Docker. Python 3.6, standard library."""
