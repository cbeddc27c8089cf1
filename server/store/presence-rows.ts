/**
 * The order in which rows of connected programs are written and removed. A program that dials again may be here before the
 * end of its old connection is noticed: that end must not take the row of its successor away (H3). Rows name their replica,
 * so only connections of one replica can meet.
 */
const TRIES = 3;

interface Row {
  /** The newest connection of the program. */
  readonly holder: object;
  /** What is done last; does not reject. */
  last: Promise<void>;
}

export class PresenceRows {
  private readonly rows = new Map<string, Row>();

  /** Writes the row of a program's newest connection, after what is on its way for the ones before. */
  async came(instanceId: string, holder: object, write: () => Promise<void>): Promise<void> {
    const before = this.rows.get(instanceId)?.last ?? Promise.resolve();
    const writing = before.then(write);
    this.rows.set(instanceId, { holder, last: settled(writing) });
    await writing;
  }

  /** For every connection that came, also when that failed: removes the row, unless the program has a newer connection. */
  async gone(instanceId: string, holder: object, remove: () => Promise<void>): Promise<void> {
    const row = this.rows.get(instanceId);
    if (row?.holder !== holder) return;
    const isNewest = () => this.rows.get(instanceId) === row;
    const removing = row.last.then(() => removed(remove, isNewest));
    row.last = settled(removing);
    try {
      await removing;
    } finally {
      if (isNewest()) this.rows.delete(instanceId);
    }
  }
}

/** Tried again: a row that stays tells of a program that is gone, and whoever was cut off from the database may be first to notice. */
async function removed(remove: () => Promise<void>, isNewest: () => boolean): Promise<void> {
  for (let tries = 1; isNewest(); tries++) {
    try {
      return await remove();
    } catch (error) {
      if (tries === TRIES) throw error;
    }
  }
}

const settled = (work: Promise<void>) => work.catch(() => {});
