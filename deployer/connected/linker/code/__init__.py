"""What machine code in a file needs: instructions, kernels."""
