// Package twoowners has tests only: two coordinators that both believe they own a
// transactional id, in every order in which what they do can happen.
//
// A scheduler stops each coordinator before each call of its store, or before each
// operation of the file system below it, and lets one of them go on at a time. It
// goes through all the choices that there are, one run after another, each in a
// bubble with a clock of its own. At the end of each run the transaction has one
// outcome, no identity was given twice, and nothing is left in Prepare.
package twoowners
