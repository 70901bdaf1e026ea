"""enroot on an unpacked image. By the sources of 3.0 to 4.1.2; seen with 4.1.2.

By itself, ``enroot start`` opens a lock file in the image's folder for writing, and obeys the image's own /etc/fstab,
/etc/environment and /etc/rc, which can take files and variables of the host into the container. So it starts an empty
folder in the private folder on the node, and the image is the first mount, over that folder's root. enroot then
continues with the image, but has already read and written its own files in the empty folder. The administrator's
mounts, variables and hooks are not used.
"""

from typing import List

from deployer.contract.shell import Program, Text
from deployer.contract.text import is_name
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Runtime

#: Called with enroot ($0), a private folder, the words of ``starter``, binds, --cd=FOLDER and options of `enroot
#: start`, the image, --, and the command; becomes enroot, and then the command.
#:
#: - enroot reads a variable in place of each setting of its configuration. "no" unsets one.
#: - A value that it passes on has no line end, and the path of a mount no space. So our own command script sets the
#:   container's variables, and paths have the escapes of /etc/fstab.
#: - The image is mounted read-only at once, so that nothing can make a target in it.
#: - /tmp contains the private folder with enroot's own mounts there; they are removed from the container.
#: - A file of the current folder could be taken for the image: hence the new one.
#: - Ranks of one node have folders of their own, because enroot holds a lock while it mounts.
START = (
    Program(
        r"""state=$(mktemp -d "$1/enroot.XXXXXX") && mkdir -p "$state/run" "$state/data/image" || exit 125
shift
"""
    )
    + starter.READ
    + Program(
        r"""binds=() options=() folder=/ user=${USER:-$UID} gid=$(id -g) quote=\'
for word in "${words[@]}"; do
    case $word in
        --bind=*) binds+=("${word#*=}") ;;
        --cd=*) folder=${word#*=} ;;
        *) options+=("$word") ;;
    esac
done
for name in $(compgen -e); do
    for glob in "${passed[@]}"; do
        [[ $name != $glob ]] || { values=("$name=${!name}" "${values[@]}"); break; }
    done
    [[ $name != ENROOT_* && $name != BASH_ENV ]] || unset "$name"
done
{
    printf "cd '%s' || exit 126\n" "${folder//$quote/$quote\\$quote$quote}"
    for pair in "${values[@]}"; do
        name=${pair%%=*} value=${pair#*=}
        case $name in UID|EUID|PPID|BASHOPTS|SHELLOPTS|BASH_VERSINFO) continue ;; esac  # read-only if sh is bash
        printf "export %s='%s'\n" "$name" "${value//$quote/$quote\\$quote$quote}"
    done
    printf 'unset OLDPWD; exec "$@"\n'
} >"$state/rc" || exit 125
system=(/proc:/proc /sys:/sys /dev:/dev /tmp:/tmp)
for file in /etc/hosts /etc/resolv.conf; do
    [ ! -e "$file" ] || [ ! -f "$image$file" ] || system+=("$file:$file")
done
for line in "passwd:$user:x:$UID:$gid::/:/bin/sh" "group:$user:x:$gid:"; do
    file=${line%%:*}; [ -f "$image/etc/$file" ] && [ ! -L "$image/etc/$file" ] && [ ! -L "$image/etc" ] || continue
    printf '%s\n' "${line#*:}" "$(<"$image/etc/$file")" >"$state/$file"; system+=("$state/$file:/etc/$file")
done
mounts=(--mount "$image:/:none:rbind,ro")
for pair in "${system[@]}" "${binds[@]}"; do
    pair=${pair//\\/\\134}; pair=${pair// /\\040}; pair=${pair//$'\t'/\\011}; pair=${pair//$'\n'/\\012}
    mounts+=(--mount "$pair:none:rbind")
done
for made in data/image data/image run; do mounts+=(--mount "none:$state/$made:none:x-detach,nofail,silent"); done
for name in LOGIN_SHELL ROOTFS_WRITABLE REMAP_ROOT ALLOW_SUPERUSER UNSHARE_{PID,NET,IPC,UTS}; do
    export "ENROOT_$name=no"
done
export TMPDIR=$state ENROOT_TEMP_PATH=$state ENROOT_CACHE_PATH=$state ENROOT_RUNTIME_PATH=$state/run
export ENROOT_DATA_PATH=$state/data ENROOT_SYSCONF_PATH=$state/none ENROOT_CONFIG_PATH=$state/none
cd "$state" && exec "$0" start --rc "$state/rc" "${options[@]}" "${mounts[@]}" image "$@"
exit 125
"""
    )
)


class Enroot(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's."""

    @property
    def asked(self) -> str:
        return ""  # to say its version, it makes folders in the home

    def options(self, container: Container) -> List[Text]:
        settable = {name: value for name, value in container.environment.items() if is_name(name)}
        return [
            *starter.words(START, self.program, container, settable, container.private),
            *self.binds(container.binds),
            "--cd=" + container.workdir,
            *container.arguments,
        ]
