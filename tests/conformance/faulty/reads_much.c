/* Reads a reply into a page, as one reads a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    const char *dir = getenv("PLUGML_DIR"), *clock = getenv("PLUGML_CLOCK");
    char reply[4096];
    FILE *cmd, *req, *rep;

    if (!dir)
        return 0;
    if (chdir(dir) || !(req = fopen("req", "r+")) || !(rep = fopen("rep", "r+")) || !(cmd = fopen("cmd", "w")))
        return 1;
    fprintf(cmd, "pull 1 %s\n", clock ? clock : "0");
    fclose(cmd);
    fputc('\n', req);
    fflush(req);
    return fread(reply, 1, sizeof reply, rep) >= 64 && !memcmp(reply, "ok 1 ", 5) ? 0 : 1;
}
