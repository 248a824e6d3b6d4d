/** The queue of trainings that were started in the lab. */

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
