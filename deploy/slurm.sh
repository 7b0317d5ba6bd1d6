#!/usr/bin/env bash
# Train on several machines under Slurm: sbatch --nodes 32 deploy/slurm.sh RECIPE DATA RUN
# The folders of the data and of the run must be shared by all machines. A job that is sent again goes on
# from the run's last checkpoint, also with another number of machines.
#SBATCH --job-name=regard
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -eu
recipe=$1 data=$2 run=$3
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
resume=$([ -e "$run" ] && echo --resume || true)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110 # seconds to save before torchrun kills, of --signal's 120; torch 2.11 has 30
exec srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
    -m regard train "$recipe" "$data" --out "$run" $resume
