/** Options of every command that lists. */
import type { Command } from "commander";
import { parseCount } from "../words.ts";

const MAX_PAGE = 100;

export interface PageOptions {
  limit?: number;
  pageToken?: string;
}

export function addPageOptions(command: Command): Command {
  return command
    .option("--limit <n>", `at most so many, 1 to ${MAX_PAGE}`, parseCount(1, MAX_PAGE))
    .option("--page-token <token>", "go on where a page ended");
}

export function pageOf(options: PageOptions): { pageSize: number; pageToken: string } {
  return { pageSize: options.limit ?? 0, pageToken: options.pageToken ?? "" };
}

/** How to see more, when there is more. */
export function nextPageNote({ nextPageToken }: { nextPageToken: string }): string {
  return nextPageToken === "" ? "" : `\nMore: --page-token ${nextPageToken}`;
}
