#!/bin/bash
# test_manual.sh BUILD: the man page and the completion of bash against the program's own help and its option table.
# Prints what failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$(realpath "$1")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
PATH=$build:$PATH
bad=0
failed() {
    echo "FAILED $*"
    bad=1
}
same() { # same NAME EXPECTED ACTUAL: two lists, one a line, in any order
    local expected actual
    expected=$(sort <<<"$2")
    actual=$(sort <<<"$3")
    [ "$expected" = "$actual" ] && [ -n "$expected" ] && return
    failed "$1 (< wanted, > found):"
    diff <(echo "$expected") <(echo "$actual")
}

commands=$(dptrain --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
same 'train and eval are commands' $'eval\ntrain' "$(grep -xE 'train|eval' <<<"$commands")"
options() { # options COMMAND: as --help lists them
    dptrain "$1" --help | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p'
}

# ---- the man page ----

src/cli/manual.sh "$build/dptrain" >"$tmp/dptrain.1" || failed 'manual.sh fails'
if command -v groff >/dev/null; then
    warnings=$(groff -man -ww -z "$tmp/dptrain.1" 2>&1)
    [ -z "$warnings" ] || failed "groff says: $warnings"
fi
plain() { sed -e 's/\\-/-/g' -e 's/\\&//g' -e 's/\\e/\\/g' "$tmp/dptrain.1"; }
same 'the man page has every command' "$commands" "$(plain | sed -n 's/^\.SH OPTIONS OF \(.*\)/\L\1/p')"
for command in $commands; do
    page=$(plain | sed -n "/^\.SH OPTIONS OF ${command^^}$/,/^\.SH /p")
    [ "$command" != explain ] ||
        grep -qx '\.B loss-average' <<<"$page" || failed 'the man page has no lesson'
    same "the man page has the options of $command" "$(options "$command")" \
        "$(sed -n '/^\.TP$/{n;s/^\.BI* \(--[a-z0-9-]*\).*/\1/p}' <<<"$page")"
    # Word for word, whatever the line breaks.
    words=$(dptrain "$command" --help | sed '1,/^Defaults/d' | tr -d ':' | tr -s ' \n' '\n' | grep .)
    same "the man page has the words of $command --help" "$words" \
        "$(sed -e '1,/^\.SS/{/^\.SS/!d}' -e '/^\.SH/d' -e '/^\.TP$/d' -e 's/^\.\(SS\|BI*\) //' <<<"$page" |
            tr -d '":' | tr -s ' \n' '\n' | grep .)"
done
# No option of the table is lost on the way to the help.
table=$(grep -oE 'X\(OPT_[A-Z0-9_]+, "[a-z0-9-]+"' src/cli/options.def | sed 's/.*"\(.*\)"/--\1/' | sort -u)
same 'every option of the table belongs to a command' "$table" \
    "$(for command in $commands; do options "$command"; done | sort -u)"

# ---- the completion ----

compopt() { compopts="${compopts-} $*"; } # the builtin works within a completion alone
# shellcheck source=src/cli/completion.bash
. src/cli/completion.bash
complete_words() { # complete_words WORD...: what is offered for the last word, one a line
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    compopts=
    _dptrain "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    [ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\n' "${COMPREPLY[@]}"
}
complete -p dptrain | grep -q -- '-F _dptrain dptrain' || failed 'the completion is not registered'
same 'commands are completed' "$commands"$'\n--help\n--version' "$(complete_words dptrain '')"
same 'a command is completed' 'train' "$(complete_words dptrain tr)"
lessons=$(dptrain explain --help | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p')
[ "$(wc -l <<<"$lessons")" -eq 7 ] || failed "explain has other than seven lessons: $lessons"
mkdir "$tmp/empty"
source=$PWD
cd "$tmp/empty" || exit 2 # no names of files among the words
for command in $commands; do
    first=
    [ "$command" != explain ] || first=$'\n'$lessons
    same "options of $command are completed" "$(options "$command")$first" \
        "$(complete_words dptrain "$command" '')"
done
cd "$source" || exit 2
same 'after a lesson come options' "$(options explain)" "$(complete_words dptrain explain split '')"
same 'a lesson is completed' 'accumulation' "$(complete_words dptrain explain acc)"
same 'an option is completed' $'--loss\n--loss-mode' "$(complete_words dptrain train --device cpu --los)"
same 'after a flag come options' '--no-shuffle' "$(complete_words dptrain train --quiet --no-s)"
same 'models are completed' "$(dptrain train --model list)" "$(complete_words dptrain train --model '')"
same 'after = too' 'lenet' "$(complete_words dptrain train --model = le)"
same 'at = too' "$(dptrain train --model list)" "$(complete_words dptrain train --model =)"
same 'with _ in the name' $'gather\nglobal' "$(complete_words dptrain train --loss_mode g)"
same 'kinds of split are completed' $'balanced\nchunk' "$(complete_words dptrain train --split '')"
same 'sources of data are completed' $'fashion-mnist\nidx:\nimages:\nsafetensors:\nsegmentation:\nsynthetic' "$(complete_words dptrain train --data '')"
[ -z "$(complete_words dptrain train --lr '')" ] || failed 'something is offered for a number'
[ -z "$(complete_words dptrain nothing '')" ] || failed 'something is offered for a command that is none'

touch "$tmp/weights.safetensors"
mkdir "$tmp/images"
cd "$tmp" || exit 2
same 'files are completed' 'weights.safetensors' "$(complete_words dptrain eval --init wei)"
same 'and directories' 'images' "$(complete_words dptrain train --model-dir im)"
same 'and what is to be written' 'weights.safetensors' "$(complete_words dptrain predict --output wei)"
same 'and files without an option' 'weights.safetensors' "$(complete_words dptrain convert weights.pt wei)"
same 'and more than one behind an option' 'weights.safetensors' "$(complete_words dptrain predict --data a.png wei)"
[ -z "$(complete_words dptrain train wei)" ] || failed 'files are offered to a command that takes none'
same 'and the files of a source' 'weights.safetensors' "$(complete_words dptrain train --data safetensors : we)"
complete_words dptrain train --data idx : >"$tmp/out"
grep -qx images "$tmp/out" || failed 'files are not offered after idx:'

# Words are those that the program takes: its message for a word that it does not know lists them.
checked=0
for command in $commands; do
    for option in $(dptrain "$command" --help | sed -nE 's/^  (--[a-z0-9-]*) (NAME|KIND|MODE|HOW) .*/\1/p'); do
        message=$(dptrain "$command" "$option" qqqqqq 2>&1)
        [[ $message =~ \'qqqqqq\'\ is\ unknown:\ one\ of\ (.*)\ is\ needed ]] || continue
        same "words of $command $option" "${BASH_REMATCH[1]//, /$'\n'}" \
            "$(complete_words dptrain "$command" "$option" '')"
        checked=$((checked + 1))
    done
done
[ $checked -ge 7 ] || failed "only $checked options with words were compared"

[ $bad -eq 0 ] && echo 'manual: all as expected'
exit $bad
