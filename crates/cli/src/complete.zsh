# Names of locks that are held or waited for.
_lockkeeper_names() {
    local -a names
    names=(${(f)"$(lockkeeper names 2> /dev/null)"})
    compadd -a names
}

# Completes the command after --. Fails before it.
_lockkeeper_command() {
    local at=${words[(i)--]}
    (( at < CURRENT )) || return 1
    shift $at words
    (( CURRENT -= at ))
    _normal
    return 0
}

