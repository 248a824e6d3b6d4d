/** The rooms of the lab: one line a room, in the order of the navigation. */

import type { Component } from "svelte";
import { withQuery } from "./api";

/** A room gets what follows its path in the address, decoded; "" where nothing does. */
export type RoomComponent = Component<{ name: string }>;

export interface Room {
  /** The first part of the address, which is the room's alone. */
  path: string;
  title: string;
  /** Whether the navigation has it; a page of one run or study is reached by its links. */
  isInNavigation: boolean;
  /** Whether it is about one run and a text, which a link to it carries. */
  isOfRun?: boolean;
  load: () => Promise<{ default: RoomComponent }>;
}

export const ROOMS: Room[] = [
  { path: "/runs", title: "Runs", isInNavigation: true, load: () => import("./rooms/Runs.svelte") },
  { path: "/run", title: "Run", isInNavigation: false, load: () => import("./rooms/Run.svelte") },
  { path: "/study", title: "Study", isInNavigation: false, load: () => import("./rooms/Study.svelte") },
  { path: "/train", title: "Train", isInNavigation: true, load: () => import("./rooms/Train.svelte") },
  { path: "/playground", title: "Playground", isInNavigation: true, isOfRun: true, load: () => import("./rooms/Playground.svelte") },
  { path: "/attention", title: "Attention", isInNavigation: true, isOfRun: true, load: () => import("./rooms/Attention.svelte") },
  { path: "/heads", title: "Heads", isInNavigation: true, isOfRun: true, load: () => import("./rooms/Heads.svelte") },
  { path: "/design", title: "Design", isInNavigation: true, load: () => import("./rooms/Design.svelte") },
];

/** The address of a room, with the run and the text that were chosen last where it is about them. */
export function addressOf(room: Room, { run, text }: { run: string; text: string }): string {
  return room.isOfRun ? withQuery(room.path, { run: run || null, text: (run && text) || null }) : room.path;
}

/** The room of an address, and what follows the room's path in it; undefined if there is none. */
export function findRoom(path: string): { room: Room; name: string } | undefined {
  const address = path === "/" ? ROOMS[0].path : path;
  const room = ROOMS.find((one) => address === one.path || address.startsWith(`${one.path}/`));
  if (!room) return undefined;
  const rest = address.slice(room.path.length + 1).replace(/\/$/, "");
  try {
    return { room, name: decodeURIComponent(rest) };
  } catch {
    return undefined; // the address is no text
  }
}
