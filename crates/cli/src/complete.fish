
# After --, the command's own completion; before it, names of locks that are held or waited for.
function __fish_lockkeeper_wants_command
    contains -- -- (commandline -opc)
end
function __fish_lockkeeper_complete_command
    set -l words (commandline -opc)
    set -e words[1..(contains -i -- -- $words)]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end
function __fish_lockkeeper_names
    lockkeeper (string match -- --machine (commandline -opc))[1] names 2>/dev/null
end
complete -c lockkeeper -n "__fish_seen_subcommand_from run lock unlock held query inspect release; and not __fish_lockkeeper_wants_command" -f -a "(__fish_lockkeeper_names)"
complete -c lockkeeper -n __fish_lockkeeper_wants_command -f -a "(__fish_lockkeeper_complete_command)"
