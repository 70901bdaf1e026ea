fprintf(stdout, "nodes ", MPI_NODE_COUNT, "\n");
MPISend(1, "return 6*7;");
MPIReceive(-1, from, answer);
fprintf(stdout, "node ", from, " says ", answer, "\n");
