"""The program file itself: its sources, bytecode and pages."""
