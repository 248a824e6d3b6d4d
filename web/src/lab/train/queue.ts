/** The queue of trainings that were started in the lab. */

import { formatCount, formatDuration } from "../../lib/numbers";

export interface Job {
  id: string;
  kind: "train" | "resume";
  run: string;
  device: string;
  status: "waiting" | "training" | "finished" | "stopped" | "failed";
  added: number;
  is_stopping: boolean;
  message: string | null;
  /** Its place among those that wait, from 1. */
  place: number | null;
  has_run: boolean;
  has_recipe: boolean;
  /** Of a job that trains, once its run is made. */
  progress: { steps: number; total_steps: number | null; seconds_left: number | null } | null;
}
export interface Queue {
  cursor: string;
  is_read_only: boolean;
  jobs_at_once: number;
  jobs: Job[];
}

export const READ_ONLY = "This lab is read-only: it starts, stops and resumes nothing.";

/** The job of a run that waits or trains. */
export function findJob(queue: Queue, run: string): Job | undefined {
  return queue.jobs.find((job) => job.run === run && (job.status === "waiting" || job.status === "training"));
}

/** How far a training is, in words. The time is that of training, as `heed train` says it. */
export function describeProgress({ progress }: Job): string {
  if (!progress) return "No step yet.";
  const { steps, total_steps, seconds_left } = progress;
  const step = `Step ${formatCount(steps)}${total_steps === null ? "" : ` of ${formatCount(total_steps)}`}`;
  return seconds_left === null ? `${step}.` : `${step}, about ${formatDuration(seconds_left)} of training left.`;
}
