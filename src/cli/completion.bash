# Bash completion for dptrain. Commands, options and values are asked of the program itself, so that this file never
# has to follow it.
# shellcheck shell=bash

# The options of a command, one a line: name, argument (empty for a flag), text, with \037 between.
_dptrain_options() { # PROGRAM COMMAND
    local line name='' argument='' text=''
    while IFS= read -r line; do
        if [[ $line =~ ^\ \ --([a-z0-9-]+)\ ?([^\ ]*)\ *(.*)$ ]]; then
            [[ -z $name ]] || printf '%s\037%s\037%s\n' "$name" "$argument" "$text"
            name=${BASH_REMATCH[1]} argument=${BASH_REMATCH[2]} text=${BASH_REMATCH[3]}
        elif [[ $line =~ ^\ {20,}(.*)$ ]]; then
            text="$text ${BASH_REMATCH[1]}"
        fi
    done < <("$1" "$2" --help 2>/dev/null)
    [[ -z $name ]] || printf '%s\037%s\037%s\n' "$name" "$argument" "$text"
}

# The words that an option takes. Where its argument says that it is one of some (see options.def), the help begins with
# them: "auto, cuda or cpu [auto]", "none, or linear: lr times ...".
_dptrain_words() { # PROGRAM COMMAND OPTION ARGUMENT TEXT
    local item text=$5
    if [[ $3 = model ]]; then
        "$1" "$2" --model list 2>/dev/null
    elif [[ $4 = *'|'* ]]; then
        tr '|' '\n' <<<"$4" | grep '^[a-z]'
    elif [[ $4 =~ ^(NAME|KIND|MODE|HOW|SOURCE)$ ]]; then
        text=${text%% \[*}
        text=${text%%;*}
        text=${text//, or /,}
        text=${text// or /,}
        tr ',' '\n' <<<"$text" | while IFS= read -r item; do
            # A word that goes on, like idx:DIR, keeps its colon.
            [[ $item =~ ^\ *([a-z][a-z0-9_-]*)(:[A-Z])? ]] && printf '%s\n' "${BASH_REMATCH[1]}${BASH_REMATCH[2]:+:}"
        done
    fi
}

# Whether a command takes the names of files that belong to no option: convert IN OUT, --data PATH...
_dptrain_takes_files() { # PROGRAM COMMAND
    [[ $2 != explain ]] && "$1" "$2" --help 2>/dev/null | grep -qE '^usage: dptrain [a-z]+ ([A-Z]|.*PATH\.\.\.)'
}

_dptrain() {
    local program=${1/#\~/$HOME} command=${COMP_WORDS[1]-} current=${COMP_WORDS[COMP_CWORD]}
    local option=${COMP_WORDS[COMP_CWORD - 1]} at=$((COMP_CWORD - 1)) name argument text
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        # In the program's help a command's line is indented by two, and so is nothing else.
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p') \
            --help --version" -- "$current")
        return
    fi
    # Bash cuts words at = and at the colon of idx:DIR.
    if [[ $option = : || $current = : ]]; then
        [[ $current != : ]] || current=''
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames
        return
    fi
    if [[ $current = '=' ]]; then
        current=''
    elif [[ $option = '=' ]]; then
        at=$((at - 1))
    fi
    option=${COMP_WORDS[at]}
    if [[ $option = --* ]]; then
        option=${option#--}
        option=${option//_/-}
        while IFS=$'\037' read -r name argument text; do
            [[ $name = "$option" && -n $argument ]] || continue
            mapfile -t COMPREPLY < <(compgen -W "$(_dptrain_words "$program" "$command" "$name" "$argument" "$text")" \
                -- "$current")
            if [[ $argument =~ FILE|DIR|PATH ]]; then
                mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
                compopt -o filenames
            elif [[ ${COMPREPLY[0]-} = *: ]]; then
                compopt -o nospace
            fi
            return
        done < <(_dptrain_options "$program" "$command")
    fi
    text=$(_dptrain_options "$program" "$command" | sed 's/^/--/' | cut -d $'\037' -f 1)
    # The first word after explain is a lesson.
    [[ $command != explain || $COMP_CWORD -ne 2 ]] ||
        text+=" $("$program" explain --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p')"
    mapfile -t COMPREPLY < <(compgen -W "$text" -- "$current")
    if [[ $current != -* ]] && _dptrain_takes_files "$program" "$command"; then
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames
    fi
}

complete -F _dptrain dptrain
