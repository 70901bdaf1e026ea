passed=() values=() words=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --pass=*) passed+=("${1#*=}") ;;
        --set-env=*) values+=("${1#*=}") ;;
        *) words+=("$1") ;;
    esac
    shift
done
shift; image=${words[-1]}; unset 'words[-1]'
