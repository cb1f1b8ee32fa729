#!/bin/sh
# The studies of docs/results/smol.md and docs/results/smol-downstream.md, as far as they need a GPU:
#   sh recipes/smol_study.sh BASE DATA OUT        two lines of work side by side; a second start resumes
#   sh recipes/smol_study.sh collect OUT FOLDER [PART]   what is there so far, as pieces of at most 15 MB
# DATA holds c4.jsonl.gz, ifeval.jsonl.gz, hellaswag.jsonl.gz, gsm8k.jsonl.gz, mmlu_pro.jsonl.gz and endings.jsonl
# (recipes/hellaswag_endings.py). The adapter must be in the package, the base in the cache.
# Sizes may be changed: MODEL, TEXTS, PROMPTS, ITEMS, NEW, TEMPERATURES, DEVICE, DTYPE, LINES_OF_WORK.
set -u
export PYTHONPATH=src PYTHONUNBUFFERED=1
lens="python3 -m orderlens"

if [ "$1" = collect ]; then
    cd "$2" && tar cf - ${4:-.} | gzip -1 | split -b 15000000 - "$3"/study.tgz.
    exit 0
fi

base=$1 data=$2 out=$3
texts=${TEXTS:-900} items=${ITEMS:-300} new=${NEW:-512} device=${DEVICE:-cuda} dtype=${DTYPE:-bfloat16}
orders=forced-ar,max-prob,top-margin,random:0,random:1
where="--model ${MODEL:-smol} --device $device --dtype $dtype"
mkdir -p "$out"

replicate() {
    for stages in score,generate sweep external measure; do
        $lens replicate $where --data "$data/c4.jsonl.gz" --preset full --limit "$texts" \
            ${TEMPERATURES:+--temperatures "$TEMPERATURES"} --evaluator smol-ar --stages "$stages" --out "$out/c4"
        echo "replicate $stages: exit code $?"
    done
}

downstream() {
    python3 recipes/smol.py answers --base "$base" --prompts "$data/ifeval.jsonl.gz" \
        --out "$out/original-ifeval.jsonl" --new "$new" --device "$device"
    $lens evaluate $where --tasks ifeval --limit "${PROMPTS:-541}" --orders $orders --max-new-tokens "$new" \
        --batch-size 271 --source ifeval="$data/ifeval.jsonl.gz" --out "$out/ifeval"
    $lens score $where --data "$data/endings.jsonl" --orders forced-ar,reverse-ar,random,max-prob \
        --limit $((4 * items)) --batch-size 400 --out "$out/endings"
    for task in hellaswag gsm8k mmlu-pro; do
        file=$(echo $task | tr - _)
        $lens evaluate $where --tasks $task --limit "$items" --orders $orders --max-new-tokens $((new / 2)) \
            --batch-size 300 --source $task="$data/$file.jsonl.gz" --out "$out/$task"
        echo "$task: exit code $?"
    done
}

for line in ${LINES_OF_WORK:-replicate downstream}; do
    $line >"$out/$line.log" 2>&1 &
done
wait
touch "$out/finished"
