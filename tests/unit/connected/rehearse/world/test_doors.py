"""The address of the doors of a simulated node."""

import ipaddress

from deployer.connected.rehearse.world import doors


def test_the_address_counts_as_one_of_the_internet() -> None:
    # NLTK 3.10 refuses others: pathsec, "SSRF attempt to restricted IP"
    assert ipaddress.ip_address(doors.ADDRESS).is_global
