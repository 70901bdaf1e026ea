/* Exit 0 when the root that this program sees has the file that its one argument names, with "own" in it. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char found[4] = "";
    int file = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    return file < 0 || read(file, found, 3) != 3 || strcmp(found, "own") != 0;
}
