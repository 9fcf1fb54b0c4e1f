// Package verify verifies webhook deliveries of a Nuncio server, and handles each of them once or in order.
//
// It is nuncio/verify for Go: options, results and codes of errors are the same. It uses the standard library alone.
package verify
