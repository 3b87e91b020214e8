# Names of locks that are held or waited for.
_lockkeeper_names() {
    local -a names
    names=(${(f)"$(lockkeeper $_lockkeeper_machine names 2> /dev/null)"})
    compadd -a names
}

# Completes the command after --. Fails before it.
_lockkeeper_command() {
    local at=${words[(i)--]}
    # Only here are all words to be seen.
    typeset -g _lockkeeper_machine=${words[(r)--machine]}
    (( at < CURRENT )) || return 1
    shift $at words
    (( CURRENT -= at ))
    _normal
    return 0
}

