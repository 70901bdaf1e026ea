state=$(mktemp -d "$1/enroot.XXXXXX") && mkdir -p "$state/run" "$state/data/image" || exit 125
shift
@read@
binds=() options=() folder=/ user=${USER:-$UID} gid=$(id -g) quote=\'
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
