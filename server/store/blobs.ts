/** Stored bytes of any size: content-addressed within their workspace, kept while somebody refers to them. */

export const BLOB_CHUNK_BYTES = 1024 * 1024;

export interface BlobRecord {
  readonly workspaceId: string;
  /** Lower-case hex. */
  readonly sha256: string;
  readonly sizeBytes: number;
}

export interface BlobWrite {
  readonly workspaceId: string;
  /** Who refers to the bytes from now on: the id of a session, a file, … */
  readonly owner: string;
  /** Pieces of any size. They are read one at a time, no faster than they are stored. */
  readonly bytes: AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
  readonly maxBytes: number;
  /** Lower-case hex; the bytes must have it. */
  readonly sha256?: string | undefined;
}

export interface BlobStore {
  /**
   * Stores the bytes and has `owner` refer to them, all or nothing. Bytes that the workspace has already are kept once and
   * counted once. MESSAGE_TOO_LARGE above `maxBytes`, LIMIT_EXCEEDED above the workspace's `blob_bytes`, INVALID_FIELD for
   * another digest than announced, NOT_FOUND without the workspace.
   */
  write(write: BlobWrite): Promise<BlobRecord>;
  find(workspaceId: string, sha256: string): Promise<BlobRecord | undefined>;
  /** From `offsetBytes`, in pieces of at most 1 MiB. NOT_FOUND, also when the bytes are given up meanwhile. */
  read(request: { workspaceId: string; sha256: string; offsetBytes?: number }): AsyncIterable<Uint8Array>;
  /** One more owner of bytes that are there; false when they are not. */
  refer(request: { workspaceId: string; sha256: string; owner: string }): Promise<boolean>;
  /** `owner` refers to nothing any more, or not to these bytes. Those that nobody refers to are gone at once. */
  release(request: { workspaceId: string; owner: string; sha256?: string | undefined }): Promise<void>;
  /** Bytes that count, and how many may; undefined for no limit. */
  usage(workspaceId: string): Promise<{ bytes: number; limitBytes: number | undefined }>;
  /**
   * Erases what is left of bytes that nobody refers to and of writes that nobody went on with for `untouchedMs`: at most
   * 256 chunks. Returns whether there may be more. Any number of replicas may do it at once.
   */
  purge(untouchedMs: number): Promise<boolean>;
}
