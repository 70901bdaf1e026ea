"""Podman without root and without a store of images, on an unpacked image. Seen with 4.3.

Podman alone needs ranges of extra user numbers (/etc/subuid), keeps files in the home and in /run/user, leaves a
process behind that holds its user namespace, and obeys several configuration files and variables. So a rank starts it
in a user namespace that has the user's own number only, with configuration and state in the private folder on the node.
"""

from typing import List

from deployer.contract.shell import Program, Text, Value
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Runtime

#: Called with podman ($0), a private folder, the words of ``starter``, options of `podman run`, the image, --, and the
#: command; becomes podman.
#:
#: - Passed variables go by name: values in a command line could be read by other users of the node. All others are
#:   unset, because many change what podman does; the container gets none of them anyway. The script's own are not
#:   exported.
#: - crun can give the process the user's own number, which PMIx checks. runc cannot without ranges of extra numbers;
#:   then the number in the container is 0.
#: - Podman refuses a runroot of more than 50 characters, so it gets a short path of the private folder.
#: - PMI_FD is a descriptor of the launcher. Podman passes descriptors on only from 3. It is moved there, not copied:
#:   Hydra waits until nobody has it.
#: - Podman passes standard input and output through unchanged unless one of them is a terminal, as with `| less` and
#:   with Open MPI's mpirun, which gives each rank a terminal as its output. Then podman copies.
#: - A container outlives a podman that is killed. So a process in the background waits for the end of podman (its
#:   number stays $$, and its launcher may leave it a zombie for a while), ends the container if it is still there, and
#:   removes the folder. The container's parent, conmon,
#:   is known by its working folder, this one: files in it may be gone, because who made the private folder removes it
#:   at the same time. conmon goes first: at the end of a container it would start podman again. Its child is the
#:   container's first process; all others of the container are known by its namespace of mounts. One that cannot end,
#:   as on a file server that hangs, is left after a minute. Then it looks again: podman may have been killed while
#:   conmon started, which forks.
#: - Podman would make a target that the image lacks inside the image, so hosts and resolv.conf need one.
START = (
    Program(
        """\
export -n state passed values words image user gid keep name glob file oci short
export -n pair task children child other again left line turn found
state=$(mktemp -d "$1/podman.XXXXXX") && mkdir "$state/run" || exit 125
shift
"""
    )
    + starter.READ
    + Program(
        """\
printf '[engine]\\nlock_type="file"\\n' >"$state/containers.conf"
printf '[storage]\\ndriver="vfs"\\n' >"$state/storage.conf"
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
exec unshare --user --map-root-user --mount --propagation=slave "$0" --log-level=error \\
    --root="$short/root" --runroot="$short/runroot" --tmpdir="$short/tmp" --storage-driver=vfs \\
    --cgroup-manager=cgroupfs --events-backend=none --default-mounts-file="$state/mounts.conf" --runtime="$oci" \\
    run --rm --interactive --pull=never --read-only --read-only-tmpfs=false --network=host --pid=host --ipc=host \\
    --no-hosts --dns=none --http-proxy=false --systemd=false --ulimit=host --umask="$(umask)" --unsetenv-all \\
    --security-opt=seccomp=unconfined --security-opt=unmask=ALL --security-opt=label=disable \\
    --tmpfs=/run --volume=/dev:/dev:rslave --volume=/sys:/sys:rslave --volume=/proc:/proc:rslave \\
    --volume=/dev/shm:/dev/shm:rslave --volume=/tmp:/tmp:rslave "${keep[@]}" "${words[@]}" --rootfs "$image" "$@\""""
    )
)


class Podman(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's, /run is empty."""

    bind_option = "--volume="

    @property
    def asked(self) -> str:
        return "podman"

    def starter(self, engine: Value) -> Value:
        # Podman-hpc too starts it, with options for stores of images.
        del engine
        return "podman"

    def options(self, container: Container) -> List[Text]:
        return [
            *starter.words(START, self.starter(container.engine), container, container.environment, container.private),
            *self.binds(container.binds),
            *self.starting_in(container.workdir),
            *("--device=" + name for name in container.devices),
            *container.arguments,
        ]

    def starting_in(self, folder: Value) -> List[Text]:
        return ["--workdir=" + folder]
