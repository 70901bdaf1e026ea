if (!mp_rank) write, format="pi is %.8f by %d ranks\n", pi, mp_size;
