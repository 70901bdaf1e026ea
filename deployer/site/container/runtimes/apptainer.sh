# Only what --pass and --set-env name reaches the container; the environment gives no options to the runtime.
shopt -s extglob; set -f
@read@
prefixes=(APPTAINER); [ "${0##*/}" = apptainer ] || prefixes+=(SINGULARITY)
found=() clean=()
# Bash cannot unset a name that is not its own kind, such as APPTAINERENV_a.b or APPTAINERENV_BASH_FUNC_f%%.
while IFS= read -r -d '' pair; do
    name=${pair%%=*}
    case $name in @(APPTAINER|SINGULARITY)*[!A-Za-z0-9_]*) clean+=(-u "$name") ;; esac
done </proc/$$/environ
[ ${#clean[@]} = 0 ] || clean=(env "${clean[@]}")
for name in $(compgen -e); do
    for glob in "${passed[@]}"; do
        if [[ $name = $glob ]]; then found+=("$name=${!name}"); break; fi
    done
    case $name in
        APPTAINER*|SINGULARITY*|TERM|@(http|https|no|all|ftp)_proxy|@(HTTP|HTTPS|NO|ALL|FTP)_PROXY) unset "$name" ;;
    esac
done
values=("${found[@]}" "${values[@]}"); text=
case "${values[*]}" in *[\\\$\`]*) [[ $("$0" exec --help 2>&1) = *--no-eval* ]] || text=1 ;; esac
for pair in "${values[@]}"; do
    name=${pair%%=*} value=${pair#*=}
    if [ "$text" ]; then value=${value//\\/\\\\}; value=${value//\$/\\\$}; value=${value//\`/\\\`}; fi
    for prefix in "${prefixes[@]}"; do export "${prefix}ENV_$name=$value"; done
done
# SingularityCE's OCI mode, which an administrator can make the default, starts no folder.
# Ranks read no settings from the home, which is shared: /proc has no such folder, and nobody can make one.
for prefix in "${prefixes[@]}"; do export ${prefix}_NO_{EVAL,NV,ROCM,OCI}=1 ${prefix}_CONFIGDIR=/proc/none; done
exec "${clean[@]}" "$0" --silent exec "${words[@]}" "$image" "$@"
