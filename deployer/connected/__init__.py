"""The connected side: a laptop with internet and Docker. One verb a file."""
