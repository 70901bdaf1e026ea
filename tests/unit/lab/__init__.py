"""Tests of the lab that need no root."""
