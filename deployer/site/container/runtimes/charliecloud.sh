read -r pid bare <"$0/pid"; run=$1; shift
if [ "$bare" ]; then
    shopt -s extglob; printf -v quote "\47"; unset LD_PRELOAD; words=()
    inside=(/usr/bin/env)
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        case $1 in
            --unset-env=*)
                for name in $(compgen -e); do
                    [[ $name != ${1#*=} || $name = USER ]] || inside+=(-u "$name")
                done ;;
            --set-env=*)
                value=${1#*=*=}; [[ $value != $quote*$quote ]] || value=${value:1:${#value}-2}
                name=${1#*=}; inside+=("${name%%=*}=$value") ;;
            *) words+=("$1") ;;
        esac
        shift
    done
    shift; set -- "${words[@]}" -- "${inside[@]}" "$@"
fi
exec "$run" --join-pid="$pid" "$@"