#!/bin/sh
# Train and export everything, one model after the other; meant to run in the background on the GPU machine:
#   setsid nohup sh recipes/train_all.sh WORK C4_FILE MINUTES_TINY MINUTES_AR MINUTES_TWIN > WORK/all.log 2>&1 &
# A model's export (validation figures included) runs beside the training of the next one.
set -u
work=$1 c4=$2
export PYTHONPATH=src PYTHONUNBUFFERED=1
recipe="python3 recipes/train_bundled.py"

one() { # NAME MINUTES
    $recipe train --which "$1" --work "$work" --max-minutes "$2" && touch "$work/$1.trained"
}

one tiny "$3"
$recipe export --which tiny --work "$work" --out "$work/out" --c4 "$c4" && touch "$work/tiny.exported" &
one tiny-ar "$4"
$recipe export --which tiny-ar --work "$work" --out "$work/out" --c4 "$c4" && touch "$work/tiny-ar.exported" &
one twin "$5"
$recipe export --which twin --work "$work" --out "$work/out" --c4 "$c4" && touch "$work/twin.exported"
wait
touch "$work/all.finished"
