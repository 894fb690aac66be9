#!/bin/sh
# manual.sh PROGRAM: prints the man page dptrain(1). Commands and options are those that the program's --help lists, in
# its words; the rest is written here.
set -eu
program=$1
version=$("$program" --version)

# Text for troff: backslashes, and hyphens that are to be copied as such.
escape() {
    sed -e 's/\\/\\e/g' -e 's/-/\\-/g'
}

commands=$("$program" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')

cat <<'TROFF'
.\" Made by src/cli/manual.sh from the program's own help.
TROFF
printf '.TH DPTRAIN 1 "" "%s" "User Commands"\n' "$version"
cat <<'TROFF'
.SH NAME
dptrain \- train neural networks on all devices of one machine
.SH SYNOPSIS
.B dptrain
.I COMMAND
.RI [ options ]
.br
.B dptrain \-\-help
.br
.B dptrain \-\-version
.SH DESCRIPTION
.B dptrain
trains neural networks on all GPUs of one workstation, or on CPU devices, in a single process and with the arithmetic of
torch.nn.DataParallel: every batch is scattered over the devices, the weights are broadcast from the first of them,
outputs are gathered, and gradients are summed.
.PP
The commands are:
TROFF
"$program" --help | sed -n 's/^  \([a-z]*\)  *\(.*\)/\1 \2/p' | escape |
    sed 's/^\([a-z]*\) \(.*\)/.TP\n.B \1\n\2/'
cat <<'TROFF'
.PP
Results go to standard output; progress and messages go to standard error. Long options are written
.BI \-\-name " value"
or
.BI \-\-name= value\fR,
with _ and \- meaning the same in a name; the last repeat of an option wins. Defaults stand in brackets.
TROFF
for command in $commands; do
    printf '.SH OPTIONS OF %s\n' "$(printf '%s' "$command" | tr '[:lower:]' '[:upper:]')"
    # The usage line, what the command does, then groups of options: a heading that ends with a colon, and under it
    # lines of "  --name ARGUMENT   text" that go on far indented.
    "$program" "$command" --help | escape | awk '
        function say(text) { # a line that begins like a request is none
            if (text ~ /^[.\047]/) text = "\\&" text
            if (text != "") print text
        }
        NR == 1 { sub(/^usage: /, ""); print ".B " $0; print ".PP"; next }
        /^Defaults stand in brackets/ || /^$/ { next }
        /^[^ ].*:$/ { sub(/:$/, ""); print ".SS " $0; next }
        /^  [a-z]/ { # a lesson
            sub(/^ +/, "")
            name = $1
            sub(/^[^ ]+ +/, "")
            print ".TP"
            print ".B " name
            say($0)
            next
        }
        /^  \\-\\-/ {
            text = substr($0, 3)
            at = match(text, /  +/)
            left = at ? substr(text, 1, at - 1) : text
            text = at ? substr(text, at + RLENGTH) : ""
            name = left
            sub(/ .*/, "", name)
            print ".TP"
            if (name != left) print ".BI " name " \"" substr(left, length(name) + 1) "\""
            else print ".B " name
            say(text)
            next
        }
        { sub(/^ +/, ""); say($0) }'
done
cat <<'TROFF'
.SH EXIT STATUS
.TP
.B 0
done
.TP
.B 1
a file, directory or device is missing, unreadable, corrupt, full or failing, or memory ran out
.TP
.B 2
something that was asked for is wrong, or a sound file does not fit the model or the data
.TP
.B 3
a loss or a gradient is not finite
.TP
.BR 130 ", " 143
a training run was interrupted or terminated, and its state saved: the same command continues it
.PP
Every failure prints one line on standard error that starts with
.BR "dptrain: error:" .
.SH ENVIRONMENT
.TP
.B DPTRAIN_LOGICAL_DEVICES
the number of devices to expose, where
.B \-\-logical\-devices
is not given
.TP
.BR CUDA_VISIBLE_DEVICES ", " CUDA_DEVICE_ORDER
which GPUs there are, and in which order they are numbered
.SH FILES
.TP
.IR DIR /model_epoch_E.safetensors
the weights after epoch E, with PyTorch's names and shapes, in the directory of
.B \-\-model\-dir
.TP
.IR DIR /model_best.safetensors
those of the epoch with the lowest validation loss, or training loss where there is no validation
.TP
.IR DIR /resume_state_S.safetensors ", " DIR /resume.json
what a run continues from: everything after step S, and which of these states are whole
.TP
.IR DIR /log.jsonl
one JSON object a line for the start, every batch, every epoch and every device
.TP
.I /usr/share/datasets/fashion\-mnist
Fashion\-MNIST, as Debian's package dataset\-fashion\-mnist installs it
.TP
.I libdptrain_cuda.so
the CUDA backend, looked for beside the program and in ../lib from there
.SH EXAMPLES
LeNet on Fashion\-MNIST with all devices:
.PP
.RS
.nf
dptrain train \-\-lr 0.05 \-\-batch\-size 128 \-\-n\-epoch 5
.fi
.RE
.PP
The test set's loss and accuracy of the best epoch:
.PP
.RS
.nf
dptrain eval \-\-init model/model_best.safetensors
.fi
.RE
.PP
From which batch on all devices train faster than one, and why the first device is the busiest:
.PP
.RS
.nf
dptrain bench
dptrain explain imbalance
.fi
.RE
TROFF
