
# After --, the command's own completion; before it, names of locks that are held or waited for.
_lockkeeper_words() {
    local i cur=${COMP_WORDS[COMP_CWORD]}
    if [[ ${COMP_WORDS[1]} == run ]]; then
        for ((i = 2; i < COMP_CWORD; i++)); do
            if [[ ${COMP_WORDS[i]} == -- ]]; then
                if declare -F _command_offset > /dev/null; then
                    _command_offset $((i + 1))
                elif ((COMP_CWORD == i + 1)); then
                    COMPREPLY=($(compgen -c -- "$cur"))
                else
                    COMPREPLY=($(compgen -f -- "$cur"))
                fi
                return
            fi
        done
    fi
    _lockkeeper "$@"
    case ${COMP_WORDS[1]} in
        run | lock | unlock | query | inspect | release)
            if ((COMP_CWORD > 1)) && [[ $cur != -* ]]; then
                COMPREPLY=($(compgen -W "$(lockkeeper names 2> /dev/null)" -- "$cur"))
            fi
            ;;
    esac
}
complete -F _lockkeeper_words -o bashdefault -o default lockkeeper
