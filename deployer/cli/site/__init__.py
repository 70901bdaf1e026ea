"""The site's command line, in deployer.pyz."""
