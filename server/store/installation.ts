/** The installation itself: one row, made by whichever server comes first. */

export interface Installation {
  readonly installationId: string;
  readonly defaultWorkspaceId: string;
}

export interface InstallationStore {
  /** Reads it, making it and its default workspace at first. Any number of servers may do it at once. */
  ensure(): Promise<Installation>;
}
