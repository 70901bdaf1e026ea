export -n state passed values words image user gid keep name glob file oci short
export -n pair task children child other again left line turn found
state=$(mktemp -d "$1/podman.XXXXXX") && mkdir "$state/run" || exit 125
shift
@read@
printf '[engine]\nlock_type="file"\n' >"$state/containers.conf"
printf '[storage]\ndriver="vfs"\n' >"$state/storage.conf"
: >"$state/mounts.conf"
user=${USER:-$UID}; gid=$(id -g); keep=()
[ -z "$PMI_FD" ] || { exec 3<&"$PMI_FD"-; PMI_FD=3; keep+=(--preserve-fds=1); }
for name in $(compgen -e); do
    for glob in "${passed[@]}"; do
        [[ $name != $glob ]] || { keep+=(--env="$name"); continue 2; }
    done
    [ "$name" = PATH ] || [ "$name" = LD_LIBRARY_PATH ] || unset "$name" 2>/dev/null
done
for pair in "${values[@]}"; do keep+=(--env="$pair"); done
for file in /etc/hosts /etc/resolv.conf; do
    [ ! -e "$file" ] || [ ! -f "$image$file" ] || keep+=(--volume="$file:$file:ro")
done
if oci=$(type -P crun); then
    keep+=(--uidmap="$UID:0:1" --gidmap="$gid:0:1" --user="$UID:$gid" --group-add=keep-groups)
    keep+=(--passwd-entry="$user:x:$UID:$gid::/:/bin/sh")
else
    oci=runc; keep+=(--userns=host)
fi
if [ -t 0 ] && [ -t 1 ]; then keep+=(--tty --log-driver=none)
elif [ -t 0 ] || [ -t 1 ] || [ -t 2 ]; then keep+=(--log-driver=none)
else keep+=(--log-driver=passthrough); fi
export HOME=$state XDG_RUNTIME_DIR=$state/run TMPDIR=$state USER=$user
export CONTAINERS_CONF=$state/containers.conf CONTAINERS_STORAGE_CONF=$state/storage.conf
export _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID=$UID _CONTAINERS_ROOTLESS_GID=$gid
cd "$state" || exit 125; short=/proc/$$/cwd
(
    trap '' HUP INT TERM
    while read -r line </proc/$$/stat && [[ ${line##*)} != " Z"* ]]; do sleep 1; done
    for ((turn = 5; turn; turn--)); do
        found=
        for task in /proc/[0-9]*; do
            task=${task##*/}
            [ "/proc/$task/cwd" -ef . ] && [ "$task" != "$BASHPID" ] || continue
            found=1
            children=(); read -r -a children <"/proc/$task/task/$task/children"; kill -KILL "$task"
            for child in "${children[@]}"; do
                exec 4<"/proc/$child/ns/mnt" || continue; kill -KILL "$child"
                [ /proc/self/fd/4 -ef /proc/self/ns/mnt ] && continue
                for ((again = 60; again; again--)); do
                    left=
                    for other in /proc/[0-9]*; do
                        [ "$other/ns/mnt" -ef /proc/self/fd/4 ] && left=1 && kill -KILL "${other##*/}"
                    done
                    [ "$left" ] && sleep 1 || break
                done
            done
        done
        [ "$found" ] && sleep 1 || break
    done
    rm -rf -- "$state"
) </dev/null >/dev/null 2>&1 3<&- &
exec unshare --user --map-root-user --mount --propagation=slave "$0" --log-level=error \
    --root="$short/root" --runroot="$short/runroot" --tmpdir="$short/tmp" --storage-driver=vfs \
    --cgroup-manager=cgroupfs --events-backend=none --default-mounts-file="$state/mounts.conf" --runtime="$oci" \
    run --rm --interactive --pull=never --read-only --read-only-tmpfs=false --network=host --pid=host --ipc=host \
    --no-hosts --dns=none --http-proxy=false --systemd=false --ulimit=host --umask="$(umask)" --unsetenv-all \
    --security-opt=seccomp=unconfined --security-opt=unmask=ALL --security-opt=label=disable \
    --tmpfs=/run --volume=/dev:/dev:rslave --volume=/sys:/sys:rslave --volume=/proc:/proc:rslave \
    --volume=/dev/shm:/dev/shm:rslave --volume=/tmp:/tmp:rslave "${keep[@]}" "${words[@]}" --rootfs "$image" "$@"