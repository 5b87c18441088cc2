"""AFBO: its round, APHE, and whose Hessians the hops of APHE meet."""
