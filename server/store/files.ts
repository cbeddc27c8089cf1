/** Files: stored bytes with a name. Those of a session go with it. All times are the database's. */
import type { File } from "../../proto/gen/tendon/v1/file_pb.js";
import type { AuditInput } from "./audit.ts";
import type { HandEvent } from "./hands.ts";
import type { Page, PageRequest } from "./page.ts";
import type { LogAdvance } from "./session-append.ts";

/** What is known of an upload once all of its bytes have come. */
export interface UploadedEnd {
  /** Lower-case hex; empty is not compared. */
  readonly sha256: string;
  /** 0: the file stays until it is deleted. */
  readonly expiresInSeconds: number;
}

export interface NewFile {
  readonly fileId: string;
  readonly workspaceId: string;
  readonly filename: string;
  readonly mimeType: string;
  /** Pieces of any size, read no faster than they are stored; `end` holds once they have been read. */
  readonly bytes: AsyncIterable<Uint8Array>;
  readonly end: () => UploadedEnd;
  readonly maxBytes: number;
  /** Client-chosen; empty gives up safe repetition. */
  readonly requestId: string;
}

/** Something that a hand of a session made. */
export interface NewOutput {
  readonly fileId: string;
  readonly workspaceId: string;
  readonly sessionId: string;
  /** Path below the directory of outputs. */
  readonly path: string;
  readonly mimeType: string;
  readonly sha256: string;
  readonly bytes: AsyncIterable<Uint8Array>;
  readonly maxBytes: number;
  /** For the session's log, in the same transaction. */
  readonly event: HandEvent;
}

/** A file that a session is given: `fileId` is a copy of `originalId`, made with the session. */
export interface FileCopy {
  readonly fileId: string;
  readonly originalId: string;
}

export interface FileStore {
  /**
   * All or nothing. A repeat with the same name, type, bytes and end returns the first file. MESSAGE_TOO_LARGE,
   * LIMIT_EXCEEDED above the workspace's stored bytes, INVALID_FIELD for another digest than announced, REQUEST_ID_REUSED.
   */
  create(file: NewFile): Promise<File>;
  /** Also one whose time is over, while it is still there. Callers check the workspace. */
  find(fileId: string): Promise<File | undefined>;
  /** Those of these that are there. */
  findAll(fileIds: readonly string[], workspaceId: string | undefined): Promise<File[]>;
  /** Newest first; without a workspace all of the installation; an empty session means any. */
  list(query: { workspaceId: string | undefined; sessionId: string; page: PageRequest }): Promise<Page<File>>;
  /** Its bytes go with the last file that has them. False when there is none in what the caller sees. */
  delete(fileId: string, workspaceId: string | undefined, audit: AuditInput): Promise<boolean>;
  /** Those whose time is over, at most `limit`. Returns how many there were. */
  deleteExpired(limit: number): Promise<number>;
  /** The newest file of each output of the session. */
  outputs(sessionId: string): Promise<File[]>;
  /** How many outputs the session has, and their bytes. */
  outputUsage(sessionId: string): Promise<{ files: number; bytes: number }>;
  /** Undefined when the session's newest file of that path has the same bytes. NOT_FOUND without the session; as `create`. */
  storeOutput(output: NewOutput): Promise<{ file: File; advance: LogAdvance } | undefined>;
  /** What became of an output, in the session's log. NOT_FOUND. */
  noteOutput(sessionId: string, event: HandEvent): Promise<LogAdvance>;
}
