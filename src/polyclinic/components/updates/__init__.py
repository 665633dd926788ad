"""Components that change an update before it leaves a site, or decide what stays there."""
