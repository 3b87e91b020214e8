
# After --, the command's own completion; before it, names of locks that are held or waited for.
_lockkeeper_words() {
    local i word command machine cur=${COMP_WORDS[COMP_CWORD]}
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
            --)
                [[ $command == run ]] || break
                COMPREPLY=()
                if declare -F _command_offset > /dev/null; then
                    _command_offset $((i + 1))
                elif ((COMP_CWORD == i + 1)); then
                    _lockkeeper_offer < <(compgen -c -- "$cur")
                fi
                # Without an offer, files: -o default.
                return
                ;;
            --machine) machine=$word ;;
            -*) ;;
            *) command=${command:-$word} ;;
        esac
    done
    _lockkeeper "$@"
    case $command in
        run | lock | unlock | held | query | inspect | release)
            if [[ $cur != -* ]]; then
                COMPREPLY=()
                _lockkeeper_offer < <(lockkeeper $machine names 2> /dev/null)
            fi
            ;;
    esac
}

# Offers the lines that begin with the current word. Anybody may have named a lock: compgen -W would run a $(…) in its name,
# and so would the line that is completed, if the name was not quoted.
_lockkeeper_offer() {
    local line quoted
    while IFS= read -r line; do
        printf -v quoted %q "$line"
        if [[ $line == "$cur"* || $quoted == "$cur"* ]]; then
            COMPREPLY+=("$quoted")
        fi
    done
}
complete -F _lockkeeper_words -o bashdefault -o default lockkeeper
