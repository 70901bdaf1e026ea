"""Tests; a package so that tests.lab can be imported from anywhere in them."""
