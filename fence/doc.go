// Package fence keeps the producer state of one partition at its leader.
package fence
