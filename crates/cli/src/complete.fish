
# Names of locks that are held or waited for.
complete -c lockkeeper -n "__fish_seen_subcommand_from run lock unlock query inspect release" -f -a "(lockkeeper names 2>/dev/null)"
