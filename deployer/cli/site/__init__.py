"""The site's command line: it travels in deployer.pyz."""
