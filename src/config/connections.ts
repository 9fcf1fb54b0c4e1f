/** Default and minimum for the maximum database connections of a node. Four nodes fit PostgreSQL's default limit of 100. */

export const connectionsDefault = 22;
export const connectionsMin = 10;
