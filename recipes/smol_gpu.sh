#!/bin/sh
# Distil, train and evaluate the adapter of smol, one after the other; meant for the background of a GPU machine:
#   setsid nohup sh recipes/smol_gpu.sh BASE WORK DOCUMENTS CHAT_SECONDS TEXT_SECONDS MINUTES > WORK/log 2>&1 &
# The corpus is tokenised beside it ("recipes/smol.py prepare"); parts that come later join the training.
# A second start goes on where the first one stopped. Results so far: "sh recipes/smol_gpu.sh collect WORK FOLDER".
set -u
export PYTHONPATH=src PYTHONUNBUFFERED=1
recipe="python3 recipes/smol.py"

if [ "$1" = collect ]; then
    cp "$2"/out/adapter* "$3"/ 2>/dev/null
    cp "$2"/run/metrics.jsonl "$2"/out/ 2>/dev/null
    cp "$2"/log "$2"/prepare.log "$2"/out/ 2>/dev/null
    tar czf "$3"/report.tgz -C "$2"/out --exclude 'adapter-*' .
    exit 0
fi

base=$1 work=$2 documents=$3 chat=$4 text=$5 minutes=$6
device=${DEVICE:-cuda}
if [ ! -e "$work/distilled" ]; then
    $recipe distil --base "$base" --work "$work" --chat-seconds "$chat" --text-seconds "$text" \
        --device "$device" ${DISTIL:-} && touch "$work/distilled"
fi
$recipe train --base "$base" --work "$work" --minutes "$minutes" --device "$device" ${TRAIN:-} &&
    $recipe evaluate --base "$base" --work "$work" --documents "$documents" --device "$device" ${EVALUATE:-}
echo "exit code $?"
touch "$work/finished"
