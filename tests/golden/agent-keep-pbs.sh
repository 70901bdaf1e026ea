#!/bin/bash
# Takes the place of ssh for launchers: agent [OPTIONS] NODE WORDS...: bash on NODE reads WORDS.
if [ "$1" = --here ]; then
    [ -z "${3-}" ] || exec >>"$3" 2>&1
    . '/home/alice/it'"'"'s here/hello-1/environment' || exit
    trap '' USR1 USR2  # they are for job.sh
    exec /bin/bash -c "$(base64 -d <<<"$2")"
fi
while [[ $1 == -* ]]; do shift; done
node=$1
shift
text=$(printf %s "$*" | base64 -w 0)
read -r first _ <'/home/alice/it'"'"'s here/hello-1/machines'
[ "$node" != "$first" ] || exec /bin/bash '/home/alice/it'"'"'s here/hello-1/agent' --here "$text"
exec pbs_tmrsh "$node" /bin/bash '/home/alice/it'"'"'s here/hello-1/agent' --here "$text" '/home/alice/it'"'"'s here/hello-1/output.log'
