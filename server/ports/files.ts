/** What the other areas may ask of the part that knows files. */
import type { AttachedFile } from "../../proto/gen/tendon/v1/file_pb.js";
import type { FileInput } from "../../proto/gen/tendon/v1/session_pb.js";
import type { FileCopy } from "../store/files.ts";

/** A file that a session is to be given: what its resource says, and the copy to make in the same transaction. */
export interface FileAttachment {
  readonly attached: Omit<AttachedFile, "$typeName" | "$unknown" | "createdAt">;
  readonly copy: FileCopy;
}

export interface FileAttachments {
  /**
   * `field` is where they stand in the request; `taken` are paths of files that the session has already. NOT_FOUND, also for
   * a file whose time is over; INVALID_FIELD for too many, a wrong path, or one that is taken.
   */
  attach(
    inputs: readonly { readonly file: FileInput; readonly field: string }[],
    workspaceId: string,
    taken?: readonly string[],
  ): Promise<FileAttachment[]>;
  /** All of a file that is text. NOT_FOUND, also for one whose time is over; INVALID_FIELD for bytes that are no UTF-8, or too many. */
  text(
    request: { readonly fileId: string; readonly workspaceId: string; readonly maxChars: number },
    field: string,
  ): Promise<string>;
  /** All of a file. `mayRead` is told its size and refuses by throwing. NOT_FOUND, also for one whose time is over. */
  bytes(
    request: {
      readonly fileId: string;
      readonly workspaceId: string;
      readonly mayRead: (sizeBytes: number) => void;
    },
    field: string,
  ): Promise<Uint8Array>;
  /** INVALID_FIELD for too many, or a path that is taken by now. */
  checkPlace(mountPath: string, taken: readonly string[]): void;
}
