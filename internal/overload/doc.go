// Package overload puts a coordinator, its dispatcher and its reaper under more
// load than their store and their participants bear, with clients that give up
// waiting, vanish and come again, and stops them at any moment. It has tests
// only. Time is that of a synctest bubble, so a slow disk takes no time.
package overload
