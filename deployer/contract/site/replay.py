"""The answers of hosts that `fetch` recorded for a job, in a folder of the bundle's data. Pure.

A file has the headers of one answer, as a line of JSON, and its body. Its name is a digest of the address, so no
request leads to another file. Beside them are the names of the hosts, a certificate with its key for all of them, and
the certificate of its authority, whose own key exists no more, with the usual ones.
"""

#: The variable of a job with the path of the folder in the container, and the folder's name.
VARIABLE, FOLDER = "FETCH_REPLAY", "replay"
HOSTS, KEY, CERTIFICATES = "hosts", "key.pem", "certificates.pem"
#: Variables with which programs find the CA certificates.
CA_READERS = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    "PIP_CERT", "HTTPLIB2_CA_CERTS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)  # fmt: skip


def name(url: str) -> str:
    """Return the name of the file with the answer of an address, given as the program asked for it."""
    import hashlib  # a rank, which needs no name, would load it too

    return hashlib.sha256(url.encode()).hexdigest()
