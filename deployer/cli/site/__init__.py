"""The site's command line, which deployer.pyz carries."""
